#include "engine/text/sample_grammar.h"

namespace gpt2 {
namespace {

// Words that come back later in the story are of few kinds, so that a small model learns within minutes to copy them.
constexpr StoryOption kNames[] = {{" Lily"}, {" Mia"}, {" Anna"}, {" Emma"}, {" Lucy"},
                                  {" Tom"},  {" Max"}, {" Ben"},  {" Leo"},  {" Sam"}};
constexpr size_t kGirls = 5; // the first of them

constexpr StoryOption kHeroes[] = {{" girl", 2}, {" boy", 2}, {" rabbit"}, {" puppy"},
                                   {" kitten"},  {" mouse"},  {" fox"},    {" duck"}};
constexpr StoryOption kHelpers[] = {{" owl"},   {" turtle"}, {" bear"},  {" elephant"},
                                    {" snail"}, {" wizard"}, {" fairy"}, {" giant"}};

constexpr StoryOption kNatures[] = {{" little"}, {" small"},  {" brave"},   {" happy"},
                                    {" shy"},    {" clever"}, {" curious"}, {" sleepy"}};
constexpr StoryOption kVowelNatures[] = {{" eager"}, {" honest"}, {" odd"}};
constexpr StoryOption kHelperNatures[] = {{" wise"},   {" kind"}, {" big"},    {" friendly"},
                                          {" gentle"}, {" tall"}, {" strong"}, {" patient"}};

constexpr StoryOption kPlaces[] = {{" river"}, {" lake"},   {" forest"}, {" sea"},
                                   {" hill"},  {" garden"}, {" castle"}, {" tower"}};
constexpr StoryOption kActivities[] = {{" sing"},  {" dance"}, {" swim"},  {" jump"},
                                       {" climb"}, {" read"},  {" paint"}, {" play"}};
constexpr StoryOption kFamily[] = {{" mother"}, {" father"},      {" sister"},      {" brother"}, {" aunt"},
                                   {" uncle"},  {" grandmother"}, {" grandfather"}, {" friends"}, {" cousin"}};

constexpr StoryOption kColors[] = {{" red"}, {" blue"}, {" green"}, {" yellow"}, {" pink"}, {" purple"}};
constexpr StoryOption kThings[] = {{" boat"}, {" drum"}, {" bell"},    {" crown"},
                                   {" cup"},  {" doll"}, {" lantern"}, {" umbrella"}};

constexpr StoryOption kSpots[] = {{" bed"}, {" table"}, {" bush"},  {" rock"},
                                  {" log"}, {" sofa"},  {" bench"}, {" stairs"}};
constexpr StoryOption kHidingPlaces[] = {{" tree"}, {" box"}, {" barn"}, {" cart"}, {" door"}, {" boot"}};
constexpr StoryOption kOldLooks[] = {{" big"}, {" broken"}, {" dusty"}, {" wooden"}, {" heavy"}, {" strange"}};
constexpr StoryOption kHoles[] = {{" well"}, {" hole"}, {" cave"}, {" drain"}, {" pit"}};
constexpr StoryOption kHoleLooks[] = {{" deep"}, {" dark"}, {" muddy"}, {" cold"}, {" narrow"}, {" secret"}};
constexpr StoryOption kLines[] = {{" rope"}, {" ribbon"}, {" vine"}, {" hook"}, {" net"}};
constexpr StoryOption kMenders[] = {{" glue"}, {" tape"}, {" string"}, {" mud"}, {" honey"}, {" wax"}};
constexpr StoryOption kMenderLooks[] = {{" sticky"}, {" old"}, {" warm"}, {" wet"}, {" strong"}, {" soft"}};
constexpr StoryOption kSellers[] = {{" baker"}, {" sailor"}, {" teacher"},   {" queen"},
                                    {" king"},  {" doctor"}, {" fisherman"}, {" witch"}};
constexpr StoryOption kSellerLooks[] = {{" old"}, {" rich"}, {" busy"}, {" rude"}, {" young"}, {" tall"}};
constexpr StoryOption kStuffs[] = {{" wood"}, {" paper"}, {" clay"}, {" glass"}, {" tin"}, {" shells"}};

constexpr StoryOption kSorrows[] = {{" sad"}, {" upset"}, {" worried"}, {" tired"}, {" angry"}, {" unhappy"}};
constexpr StoryOption kJoys[] = {{" happy"}, {" glad"}, {" proud"}, {" pleased"}, {" thankful"}, {" delighted"}};
constexpr StoryOption kTreats[] = {{" cake"}, {" berries"}, {" bread"}, {" soup"}, {" honey"},
                                   {" tea"},  {" cookies"}, {" pie"},   {" nuts"}, {" cheese"}};
constexpr StoryOption kTreatLooks[] = {{" sweet"}, {" hot"}, {" fresh"}, {" warm"}, {" delicious"}};

enum Trouble { lost, dropped, broke, wanted };

// What the story must remember: these words come back, far from where they were chosen.
struct Cast {
  std::string_view nature, kind, name; // of the hero
  std::string_view He, he, his;
  std::string_view place, activity;
  std::string_view color, thing;
  std::string_view helper_nature, helper;
  Trouble trouble;
};

// A girl has a girl's name and a boy a boy's; an animal may have either.
void choose_name(Narrator& n, Cast& cast) {
  const StoryOptions all(kNames);
  const StoryOptions fitting = cast.kind == " girl"  ? all.first(kGirls)
                               : cast.kind == " boy" ? all.subspan(kGirls)
                                                     : all;
  const StoryOption* chosen = &fitting[n.choose(fitting)];
  const bool girl = chosen < all.data() + kGirls;
  cast.name = chosen->text;
  cast.He = girl ? " She" : " He";
  cast.he = girl ? " she" : " he";
  cast.his = girl ? " her" : " his";
}

void introduce_hero(Narrator& n, Cast& cast) {
  n.choose({{"Once upon a time, there was"}, {"Long ago, there lived"}, {"Far away, there lived"}});
  const bool vowel = n.choose({{" a", 5}, {" an", 1}}) == 1;
  cast.nature = vowel ? n.word(kVowelNatures) : n.word(kNatures);
  cast.kind = n.word(kHeroes);
  n.tell(" named");
  choose_name(n, cast);
  n.tell(".", cast.He, " lived near the");
  cast.place = n.word(kPlaces);
  n.tell(" and loved to");
  cast.activity = n.word(kActivities);
  n.tell(" with", cast.his, kFamily, ".");
}

void tell_trouble(Narrator& n, Cast& cast) {
  n.tell(" One");
  n.choose({{" day", 3}, {" morning", 2}, {" evening"}, {" summer"}});
  n.tell(",", cast.he);
  cast.trouble = static_cast<Trouble>(n.choose({{" lost"}, {" dropped"}, {" broke"}, {" wanted"}}));
  n.tell(cast.trouble == wanted ? " a" : cast.his);
  cast.color = n.word(kColors);
  cast.thing = n.word(kThings);
  switch (cast.trouble) {
    case lost:
      n.tell(".", cast.He, " looked under the", kSpots, ", but it was not there.");
      break;
    case dropped:
      n.tell(" into a", kHoleLooks, kHoles, ".", cast.He, " could not reach it.");
      break;
    case broke:
      n.tell(".", cast.He, " tried to fix it with some", kMenderLooks, kMenders, ", but it did not work.");
      break;
    case wanted:
      n.tell(".", cast.He, " asked the", kSellerLooks, kSellers, ", who did not have one.");
      break;
  }
  n.tell(cast.He, " was so", kSorrows, " that", cast.he);
  const size_t reaction = n.choose({{" began to cry"}, {" sat down and cried"}, {" did not want to"}});
  if (reaction == 2) n.tell(cast.activity);
  n.tell(".");
}

void bring_helper(Narrator& n, Cast& cast) {
  n.tell(" Then a");
  cast.helper_nature = n.word(kHelperNatures);
  cast.helper = n.word(kHelpers);
  n.choose({{" came"}, {" walked"}, {" wandered"}, {" hurried"}, {" passed"}});
  n.tell(" by. \"");
  n.choose({{"Do not worry"}, {"Please do not cry"}, {"I can help you"}, {"Let me help you"}, {"Oh dear"}});
  n.tell(",", cast.name, ",\"");
  n.choose({{" said"}, {" laughed"}, {" whispered"}, {" sang"}});
  n.tell(" the", cast.helper, ", and");
}

void solve(Narrator& n, const Cast& cast) {
  switch (cast.trouble) {
    case lost:
      n.tell(" found it behind a", kOldLooks, kHidingPlaces);
      break;
    case dropped:
      n.tell(" pulled it out with a", kLines);
      break;
    case broke:
      n.tell(" fixed it with a little");
      n.choose({{" magic"}, {" wire"}, {" hammer"}, {" nail"}, {" paint"}, {" patience"}});
      break;
    case wanted:
      n.tell(" made one out of", kStuffs);
      break;
  }
  n.tell(".");
}

void rejoice(Narrator& n, const Cast& cast) {
  n.tell(cast.name, " was so", kJoys, " that", cast.he);
  switch (n.choose(
      {{" hugged the"}, {" gave the"}, {" danced around the"}, {" jumped up and down"}, {" laughed out loud"}})) {
    case 0:
      n.tell(cast.helper);
      break;
    case 1:
      n.tell(cast.helper, " some", kTreatLooks, kTreats);
      break;
    case 2:
      n.tell(cast.place);
      break;
    default:
      break;
  }
  n.tell(".");
}

void end_story(Narrator& n, const Cast& cast) {
  switch (n.choose({{" From that day on,"}, {" After that, they went to the"}, {" That night,"}, {" Now the"}})) {
    case 0:
      n.tell(cast.name, " and the", cast.helper, " were best friends.");
      break;
    case 1:
      n.tell(cast.place, " to", cast.activity, " together.");
      break;
    case 2:
      n.tell(cast.name, " fell asleep with the", cast.color, cast.thing, " by", cast.his, " side.");
      break;
    case 3:
      n.tell(cast.nature, cast.kind, " and the", cast.helper_nature, cast.helper, cast.activity,
             " together every day.");
      break;
  }
}

} // namespace

void tell_story(Narrator& narrator) {
  Cast cast;
  introduce_hero(narrator, cast);
  tell_trouble(narrator, cast);
  bring_helper(narrator, cast);
  solve(narrator, cast);
  rejoice(narrator, cast);
  end_story(narrator, cast);
}

} // namespace gpt2
